(define (problem house)
  (:domain alfred)
  (:objects
    agent1 - agent
    ButterKnifeType - otype
    KnifeType - otype
    MugType - otype
    PotatoType - otype
    CabinetType - rtype
    CounterTopType - rtype
    FridgeType - rtype
    MicrowaveType - rtype
    ShelfType - rtype
    SinkBasinType - rtype
    Potato_bar_0 - object
    Mug_bar_1 - object
    CounterTop_bar_0 - receptacle
    Fridge_bar_1 - receptacle
    Cabinet_bar_2 - receptacle
    Sink_bar_3_bar_SinkBasin - receptacle
    Microwave_bar_4 - receptacle
    Shelf_bar_5 - receptacle
    loc_0 - location
    loc_1 - location
    loc_2 - location
    loc_3 - location
    loc_4 - location
    loc_5 - location
    loc_6 - location
  )
  (:init
    (atLocation agent1 loc_0)
    (objectType Potato_bar_0 PotatoType)
    (inReceptacle Potato_bar_0 Fridge_bar_1)
    (objectAtLocation Potato_bar_0 loc_2)
    (pickupable Potato_bar_0)
    (cleanable Potato_bar_0)
    (heatable Potato_bar_0)
    (coolable Potato_bar_0)
    (objectType Mug_bar_1 MugType)
    (inReceptacle Mug_bar_1 CounterTop_bar_0)
    (objectAtLocation Mug_bar_1 loc_1)
    (pickupable Mug_bar_1)
    (cleanable Mug_bar_1)
    (heatable Mug_bar_1)
    (coolable Mug_bar_1)
    (receptacleType CounterTop_bar_0 CounterTopType)
    (receptacleAtLocation CounterTop_bar_0 loc_1)
    (receptacleType Fridge_bar_1 FridgeType)
    (receptacleAtLocation Fridge_bar_1 loc_2)
    (openable Fridge_bar_1)
    (receptacleType Cabinet_bar_2 CabinetType)
    (receptacleAtLocation Cabinet_bar_2 loc_3)
    (openable Cabinet_bar_2)
    (receptacleType Sink_bar_3_bar_SinkBasin SinkBasinType)
    (receptacleAtLocation Sink_bar_3_bar_SinkBasin loc_4)
    (receptacleType Microwave_bar_4 MicrowaveType)
    (receptacleAtLocation Microwave_bar_4 loc_5)
    (openable Microwave_bar_4)
    (receptacleType Shelf_bar_5 ShelfType)
    (receptacleAtLocation Shelf_bar_5 loc_6)
    (canContain CabinetType MugType)
    (canContain CabinetType PotatoType)
    (canContain CounterTopType MugType)
    (canContain CounterTopType PotatoType)
    (canContain FridgeType MugType)
    (canContain FridgeType PotatoType)
    (canContain MicrowaveType MugType)
    (canContain MicrowaveType PotatoType)
    (canContain ShelfType MugType)
    (canContain ShelfType PotatoType)
    (canContain SinkBasinType MugType)
    (canContain SinkBasinType PotatoType)
  )
  (:goal (exists (?r - receptacle ?o - object) (and (receptacleType ?r CounterTopType) (objectType ?o PotatoType) (inReceptacle ?o ?r) (isHot ?o))))
)
