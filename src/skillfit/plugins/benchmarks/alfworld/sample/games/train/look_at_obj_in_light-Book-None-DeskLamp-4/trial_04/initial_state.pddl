(define (problem house)
  (:domain alfred)
  (:objects
    agent1 - agent
    BookType - otype
    ButterKnifeType - otype
    DeskLampType - otype
    KnifeType - otype
    BedType - rtype
    DeskType - rtype
    DrawerType - rtype
    FridgeType - rtype
    MicrowaveType - rtype
    SafeType - rtype
    ShelfType - rtype
    SinkBasinType - rtype
    Book_bar_0 - object
    DeskLamp_bar_1 - object
    Desk_bar_0 - receptacle
    Drawer_bar_1 - receptacle
    Shelf_bar_2 - receptacle
    Safe_bar_3 - receptacle
    Bed_bar_4 - receptacle
    loc_0 - location
    loc_1 - location
    loc_2 - location
    loc_3 - location
    loc_4 - location
    loc_5 - location
  )
  (:init
    (atLocation agent1 loc_0)
    (objectType Book_bar_0 BookType)
    (inReceptacle Book_bar_0 Bed_bar_4)
    (objectAtLocation Book_bar_0 loc_5)
    (pickupable Book_bar_0)
    (objectType DeskLamp_bar_1 DeskLampType)
    (inReceptacle DeskLamp_bar_1 Desk_bar_0)
    (objectAtLocation DeskLamp_bar_1 loc_1)
    (toggleable DeskLamp_bar_1)
    (receptacleType Desk_bar_0 DeskType)
    (receptacleAtLocation Desk_bar_0 loc_1)
    (receptacleType Drawer_bar_1 DrawerType)
    (receptacleAtLocation Drawer_bar_1 loc_2)
    (openable Drawer_bar_1)
    (receptacleType Shelf_bar_2 ShelfType)
    (receptacleAtLocation Shelf_bar_2 loc_3)
    (receptacleType Safe_bar_3 SafeType)
    (receptacleAtLocation Safe_bar_3 loc_4)
    (openable Safe_bar_3)
    (receptacleType Bed_bar_4 BedType)
    (receptacleAtLocation Bed_bar_4 loc_5)
    (canContain BedType BookType)
    (canContain BedType DeskLampType)
    (canContain DeskType BookType)
    (canContain DeskType DeskLampType)
    (canContain DrawerType BookType)
    (canContain DrawerType DeskLampType)
    (canContain SafeType BookType)
    (canContain SafeType DeskLampType)
    (canContain ShelfType BookType)
    (canContain ShelfType DeskLampType)
  )
  (:goal (exists (?lamp - object ?a - agent ?l - location ?o - object) (and (objectType ?lamp DeskLampType) (isToggled ?lamp) (objectAtLocation ?lamp ?l) (atLocation ?a ?l) (objectType ?o BookType) (holds ?a ?o))))
)
