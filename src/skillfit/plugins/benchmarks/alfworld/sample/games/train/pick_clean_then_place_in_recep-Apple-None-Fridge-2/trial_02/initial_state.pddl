(define (problem house)
  (:domain alfred)
  (:objects
    agent1 - agent
    AppleType - otype
    ButterKnifeType - otype
    CupType - otype
    KnifeType - otype
    CabinetType - rtype
    CounterTopType - rtype
    FridgeType - rtype
    MicrowaveType - rtype
    ShelfType - rtype
    SinkBasinType - rtype
    Apple_bar_0 - object
    Cup_bar_1 - object
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
    (objectType Apple_bar_0 AppleType)
    (inReceptacle Apple_bar_0 CounterTop_bar_0)
    (objectAtLocation Apple_bar_0 loc_1)
    (pickupable Apple_bar_0)
    (cleanable Apple_bar_0)
    (heatable Apple_bar_0)
    (coolable Apple_bar_0)
    (objectType Cup_bar_1 CupType)
    (inReceptacle Cup_bar_1 Shelf_bar_5)
    (objectAtLocation Cup_bar_1 loc_6)
    (pickupable Cup_bar_1)
    (cleanable Cup_bar_1)
    (heatable Cup_bar_1)
    (coolable Cup_bar_1)
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
    (canContain CabinetType AppleType)
    (canContain CabinetType CupType)
    (canContain CounterTopType AppleType)
    (canContain CounterTopType CupType)
    (canContain FridgeType AppleType)
    (canContain FridgeType CupType)
    (canContain MicrowaveType AppleType)
    (canContain MicrowaveType CupType)
    (canContain ShelfType AppleType)
    (canContain ShelfType CupType)
    (canContain SinkBasinType AppleType)
    (canContain SinkBasinType CupType)
  )
  (:goal (exists (?r - receptacle ?o - object) (and (receptacleType ?r FridgeType) (objectType ?o AppleType) (inReceptacle ?o ?r) (isClean ?o))))
)
