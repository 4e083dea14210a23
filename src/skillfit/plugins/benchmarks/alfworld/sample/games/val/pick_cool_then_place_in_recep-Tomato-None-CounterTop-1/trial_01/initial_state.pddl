(define (problem house)
  (:domain alfred)
  (:objects
    agent1 - agent
    ButterKnifeType - otype
    KnifeType - otype
    PlateType - otype
    TomatoType - otype
    CabinetType - rtype
    CounterTopType - rtype
    FridgeType - rtype
    MicrowaveType - rtype
    ShelfType - rtype
    SinkBasinType - rtype
    Tomato_bar_0 - object
    Plate_bar_1 - object
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
    (objectType Tomato_bar_0 TomatoType)
    (inReceptacle Tomato_bar_0 Shelf_bar_5)
    (objectAtLocation Tomato_bar_0 loc_6)
    (pickupable Tomato_bar_0)
    (cleanable Tomato_bar_0)
    (heatable Tomato_bar_0)
    (coolable Tomato_bar_0)
    (objectType Plate_bar_1 PlateType)
    (inReceptacle Plate_bar_1 Cabinet_bar_2)
    (objectAtLocation Plate_bar_1 loc_3)
    (pickupable Plate_bar_1)
    (cleanable Plate_bar_1)
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
    (canContain CabinetType PlateType)
    (canContain CabinetType TomatoType)
    (canContain CounterTopType PlateType)
    (canContain CounterTopType TomatoType)
    (canContain FridgeType PlateType)
    (canContain FridgeType TomatoType)
    (canContain MicrowaveType PlateType)
    (canContain MicrowaveType TomatoType)
    (canContain ShelfType PlateType)
    (canContain ShelfType TomatoType)
    (canContain SinkBasinType PlateType)
    (canContain SinkBasinType TomatoType)
  )
  (:goal (exists (?r - receptacle ?o - object) (and (receptacleType ?r CounterTopType) (objectType ?o TomatoType) (inReceptacle ?o ?r) (isCool ?o))))
)
